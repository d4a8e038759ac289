"""What other programs write about a job's communication, one file a format (`TraceReader`)."""
