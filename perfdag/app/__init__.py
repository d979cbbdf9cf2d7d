"""The work of the cluster verbs and of the site, on its way into `commands`."""
