"""What each verb does. The composition root: it may import every room below it."""
