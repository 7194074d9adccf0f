"""Messages to people and programs about ended runs and alerts: webhooks and e-mail."""
