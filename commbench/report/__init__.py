"""Reading results: tables, comparisons, predictions, figures. Needs neither torch nor a GPU."""
