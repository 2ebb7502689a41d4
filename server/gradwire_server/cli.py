"""The `gradwire-server` command."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gradwire_server.access.routes import login_link
from gradwire_server.access.tokens import create_login, create_token
from gradwire_server.config import DEFAULT_HOST, DEFAULT_PORT, Settings, default_data
from gradwire_server.database.engine import Database
from gradwire_server.database.schema import head_revision, migrate
from gradwire_server.errors import GradwireServerError
from gradwire_server.serving import DEFAULT_OPERATOR, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; what cannot be done is one line on stderr and status 2."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except GradwireServerError as error:
        print(f"gradwire-server: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gradwire-server", description="The Gradwire service.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("serve", help="serve pages, API and agents")
    _add_database(command)
    _add_address(command)
    command.add_argument("--plain-http", action="store_true", help="accept other machines without TLS")
    command.add_argument("--behind-proxy", action="store_true", help="a proxy in front ends TLS; trust its headers")
    command.add_argument("--tls-cert", type=Path, metavar="PEM")
    command.add_argument("--tls-key", type=Path, metavar="PEM")
    command.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME", help="a host name that browsers may use"
    )
    command.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="once listening, write address, login link and tokens here"
    )
    command.set_defaults(run=_serve)

    command = commands.add_parser("login-link", help="print a link that logs in once within 15 minutes")
    _add_database(command)
    _add_address(command)
    command.add_argument("--name", default=DEFAULT_OPERATOR, help="who logs in; history and audit show it")
    command.set_defaults(run=_login_link)

    command = commands.add_parser("token", help="make tokens for agents and scripts")
    token_commands = command.add_subparsers(required=True, metavar="COMMAND")
    command = token_commands.add_parser("create", help="print a new token, the only time it can be read")
    _add_database(command)
    command.add_argument("--kind", required=True, choices=("ingest", "operator", "read"))
    command.add_argument("--name", default="", help="whose it is; history and audit show it")
    command.set_defaults(run=_create_token)

    command = commands.add_parser("migrate", help="bring the database up to date")
    _add_database(command)
    command.set_defaults(run=_migrate)
    return parser


def _add_database(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, default=None, metavar="DIR", help="data folder ($GRADWIRE_DATA)")
    command.add_argument("--database", default="", metavar="URL", help="default: an SQLite file in the data folder")


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s, this machine only")
    command.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s; 0 takes a free one")


def _settings(options: argparse.Namespace) -> Settings:
    address = {name: getattr(options, name) for name in ("host", "port") if hasattr(options, name)}
    return Settings(data=options.data or default_data(), database_url=options.database, **address)


def _serve(options: argparse.Namespace) -> None:
    settings = Settings(
        data=options.data or default_data(),
        database_url=options.database,
        host=options.host,
        port=options.port,
        is_plain_http=options.plain_http,
        is_behind_proxy=options.behind_proxy,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        allowed_hosts=tuple(options.allowed_host),
    )
    serve(settings, ready_file=options.ready_file)


def _login_link(options: argparse.Namespace) -> None:
    settings = _settings(options)
    with _database(settings) as database:
        secret = database.write_sync(lambda connection: create_login(connection, options.name, now=time.time()))
    print(login_link(settings.base_url, secret))


def _create_token(options: argparse.Namespace) -> None:
    name = options.name or options.kind
    with _database(_settings(options)) as database:
        print(database.write_sync(lambda connection: create_token(connection, options.kind, name, now=time.time())))


def _migrate(options: argparse.Namespace) -> None:
    with _database(_settings(options)):
        print(f"The database has revision {head_revision()}.")


def _database(settings: Settings) -> Database:
    """Return the database, created or brought up to date."""
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate(settings.effective_database_url)
    return Database(settings.effective_database_url)
