"""What people see of a result: a view as values (`blocks`), and how it becomes HTML and SVG without scripts."""
