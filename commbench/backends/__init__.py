"""One library a file; every one can be imported without its library."""
