"""`commbench ab`: launches of two sides in turn, and what a report says of them."""
