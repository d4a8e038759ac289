"""How a world is started here: one program a file, settings in, command line out."""
