"""Hera: how steps become Argo WorkflowTemplates, CronWorkflows and RBAC. No benchmark by name."""
