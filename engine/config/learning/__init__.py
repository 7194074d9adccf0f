"""Settings of training: objectives, optimisation, schedules, fine-tuning, judges."""
