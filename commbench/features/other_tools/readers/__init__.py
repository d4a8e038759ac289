"""What other tools write about their measurements, one file a format (`ImportReader`)."""
