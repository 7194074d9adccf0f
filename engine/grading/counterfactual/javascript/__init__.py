"""Mutants of JavaScript and TypeScript tests: jest, vitest, mocha, chai, jasmine, ``node:test``."""
