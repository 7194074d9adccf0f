"""What is sent to the cluster, as pure functions: pods, the agent's ConfigMap, the preloading DaemonSet."""
