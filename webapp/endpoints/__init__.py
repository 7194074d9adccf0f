"""Model endpoints with their sealed keys, and what runs may reach."""
