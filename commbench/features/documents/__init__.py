"""What others have published: the experiments of their documents, and whether a number is normal
for its machine."""
