"""The libraries that can be measured, a folder each; no code outside this folder decides by the
name of one."""
