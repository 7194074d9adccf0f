"""Model endpoints with their sealed keys, and the resources that runs may use."""
