"""Hydra's configuration files; the folder lies at the top of the repository and is installed as
commbench.conf."""
