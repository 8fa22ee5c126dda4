"""`npmlm mcp`."""

from __future__ import annotations

from npm.cli.base import EncoderCommand
from npm.cli.registry import verb
from npm.core.errors import SettingError
from npm.retrieval.settings import FillSettings


class McpCommand(FillSettings, EncoderCommand):
    """Answer agents over the Model Context Protocol, on standard input and output, until the client closes them."""


@verb(
    McpCommand,
    "npmlm mcp index=DIR",
    "index encoder occurrences retrieval documents where device precision",
    groups={"": "index encoder device precision occurrences retrieval documents where", "scoring": ""},
)
def run_mcp(settings: McpCommand) -> int:
    """Serve one client."""
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError as error:
        raise SettingError("npmlm mcp requires the package mcp: pip install 'mcp>=2.3'") from error
    from npm.agents import agent_server
    from npm.indexing.phrase_index import select

    filler = settings.open_filler(settings)
    select(filler.index, settings.documents, settings.where)  # a mistake is reported now, not to each call
    agent_server(filler).run("stdio")
    return 0
