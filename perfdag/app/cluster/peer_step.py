"""What a peer of a gang runs. It imports little: a wide gang starts many peers on few nodes."""

from perfdag.commands.options import CommandError
from perfdag.kube.config import SERVICE_ACCOUNT
from perfdag.signals import EXIT_FAILED
from perfdag.steps.runner.credentials import Keys, PeerError, take_credentials
from perfdag.steps.runner.peer import LeadWatch, serve
from perfdag.steps.runner.pod_context import from_environment, pending_limit, scratch_home


def peer(batch: int, attempt: int, port: int, pending: str) -> int:
    """Serve the lead of a gang and return the exit code. Raises CommandError."""
    take_credentials()
    context = from_environment()
    try:
        return serve(
            Keys(SERVICE_ACCOUNT),
            scratch_home() / "peer",
            context.addresses,
            port,
            pending_limit(pending),
            lead_exit_code=LeadWatch(context, batch, attempt).exit_code,
        )
    except PeerError as error:
        raise CommandError(str(error), EXIT_FAILED) from None
