"""Reading results: tables, comparisons, figures. Needs neither torch nor a GPU."""
