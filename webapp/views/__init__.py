"""Views: permission gate, context, template. To add one: here, in ``webapp.urls`` and in the access test."""
