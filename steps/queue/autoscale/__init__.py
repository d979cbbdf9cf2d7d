"""How an autoscaler follows the load of a queue."""
