"""What a request meets before any view: bounds on its body and its rate, a note of its session."""
