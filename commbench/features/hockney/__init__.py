"""What a message costs, and what each of its bytes: Hockney's model in a report."""
