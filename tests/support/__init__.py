"""Data and steps for tests, each made by a function whose name says its shape."""
