"""Mutants of Java tests: JUnit 3 to 5, TestNG, AssertJ, Truth, Hamcrest."""
