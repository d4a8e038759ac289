"""The libraries that can be measured, a folder each; nothing outside this folder names one."""
