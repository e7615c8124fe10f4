"""Tests that try to refute privacy claims: the machinery. Each method brings its own attacks (`Method.attacks`)."""
