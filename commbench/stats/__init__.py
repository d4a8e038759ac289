"""Numpy only: series, intervals, differences between launches, the test for slower."""
