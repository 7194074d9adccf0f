"""JavaScript: entities by the parser of Node.js, packages by npm as of a date, tests by their own runner."""
