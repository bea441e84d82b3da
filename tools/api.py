"""docs/api.md from protos/offloaderd/v1: services with the role that each call needs, messages, enums, and comments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from offloaderd.api.roles_needed import NEEDS
from offloaderd.protocol.errors import REASONS, code_of_kind, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Comments = Mapping[tuple[int, ...], str]

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = ".offloaderd.v1."
SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
    if name not in {"TYPE_MESSAGE", "TYPE_ENUM"}
}
# Field numbers of descriptor.proto, by which comments are found.
MESSAGE, ENUM, SERVICE = 4, 5, 6
NESTED, FIELD, VALUE, METHOD = 3, 2, 2, 2


def api_page() -> str:
    """Return the page."""
    lines = [
        "# API",
        "",
        "Generated from `protos/offloaderd/v1` by `make docs`. gRPC, package `offloaderd.v1`; reflection and "
        "`grpc.health.v1` are served as well. What holds for all calls: topics are written "
        "`persistent://tenant/namespace/topic` (short forms are accepted), times are milliseconds since 1970 where the "
        "name ends in `_ms`, and a list in one answer has pages: with a `page_size` it has no more elements than that, "
        "and a `next_page_token` until the last page, which goes with the same request. "
        "Roles are explained in [security.md](security.md); programs in Python use [client.md](client.md).",
    ]
    lines += errors()
    files = descriptors()
    for file in files:
        comments = comments_of(file)
        for number, service in enumerate(file.service):
            lines += ["", f"## {service.name}", "", about(file, comments, number), ""]
            lines += ["| call | request | answer | role | what it does |", "|---|---|---|---|---|"]
            for index, method in enumerate(service.method):
                said = comments.get((SERVICE, number, METHOD, index), "")
                lines.append(row(service.name, method, said))
    for file in files:
        comments = comments_of(file)
        shown = [*messages(file.message_type, (), comments, ""), *enums(file, comments)]
        if shown:
            lines += ["", f"## Messages of {Path(file.name).name}", *shown]
    return "\n".join(lines) + "\n"


def errors() -> list[str]:
    """Return the section of the errors: the reason and the code of each class."""
    lines = [
        "",
        "## Errors",
        "",
        "An error status has a `google.rpc.Status` in the trailing metadata `grpc-status-details-bin`: `ErrorInfo` "
        "with the domain `offloaderd` and a reason that never changes, `RetryInfo` where the same call may succeed "
        "later, and `Help` with what to do, without a `url`: these pages have no address of their own. Reason and hint "
        "are in `offloaderd-error-bin` as well, as an "
        "[`ErrorDetail`](#errordetail), for clients without the types of Google. Reasons that a client does not know "
        "go by their code.",
        "",
        "| reason | code | meaning |",
        "|---|---|---|",
    ]
    kinds = sorted(REASONS, key=reason_of)
    lines += ["| `INTERNAL`, `OFFLOADER_ERROR` | `INTERNAL` | Any other error of the daemon; its log says more. |"]
    return [*lines, *(f"| `{reason_of(one)}` | `{code_of_kind(one).name}` | {meaning(one)} |" for one in kinds)]


def meaning(kind: type) -> str:
    """Return the first line of a class's docstring."""
    return cell((kind.__doc__ or "").strip().splitlines()[0])


def descriptors() -> list[descriptor_pb2.FileDescriptorProto]:
    """Return our files with their comments. Raises RuntimeError for a file that does not compile."""
    names = sorted(str(file.relative_to(PROTOS)) for file in (PROTOS / "offloaderd/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "descriptors"
        if protoc.main(["", f"-I{PROTOS}", "--include_source_info", f"--descriptor_set_out={target}", *names]):
            raise RuntimeError("the protos do not compile")
        files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
        return sorted(files, key=lambda file: file.name)


def comments_of(file: descriptor_pb2.FileDescriptorProto) -> Comments:
    """Return the comment before, or behind, each element, in one line; the path () is the file's own comment."""
    found = {}
    for one in file.source_code_info.location:
        # That of a file stands before its first statement, `syntax`.
        path = () if list(one.path) == [12] else tuple(one.path)
        text = f"{one.leading_comments} {one.trailing_comments}".strip()
        if text:
            found[path] = " ".join(text.split())
    return found


def about(file: descriptor_pb2.FileDescriptorProto, comments: Comments, number: int) -> str:
    """Return what a service is about: its own comment, else that of its file."""
    return comments.get((SERVICE, number)) or comments.get((), "") or file.name


def row(service: str, method: descriptor_pb2.MethodDescriptorProto, said: str) -> str:
    """Return the line of a call."""
    role = NEEDS[f"/offloaderd.v1.{service}/{method.name}"].role
    request = ("stream of " if method.client_streaming else "") + link(method.input_type)
    answer = ("stream of " if method.server_streaming else "") + link(method.output_type)
    return f"| `{method.name}` | {request} | {answer} | {role} | {cell(said)} |"


def messages(
    found: Iterable[descriptor_pb2.DescriptorProto],
    path: tuple[int, ...],
    comments: Comments,
    outer: str,
) -> Iterator[str]:
    """Yield the messages, each followed by those inside it."""
    for number, message in enumerate(found):
        here = (*path, NESTED if path else MESSAGE, number)
        name = f"{outer}{message.name}"
        yield from ("", f"### {name}")
        if said := comments.get(here):
            yield from ("", said)
        if message.field:
            yield from ("", "| field | type | number | what it is |", "|---|---|---|---|")
        for index, field in enumerate(message.field):
            said = comments.get((*here, FIELD, index), "")
            yield f"| `{field.name}` | {type_of(message, field)} | {field.number} | {cell(said)} |"
        yield from messages(message.nested_type, here, comments, f"{name}.")


def enums(file: descriptor_pb2.FileDescriptorProto, comments: Comments) -> Iterator[str]:
    """Yield the enums of a file."""
    for number, enum in enumerate(file.enum_type):
        yield from ("", f"### {enum.name}", "", "| value | number | what it means |", "|---|---|---|")
        for index, value in enumerate(enum.value):
            said = comments.get((ENUM, number, VALUE, index), "")
            yield f"| `{value.name}` | {value.number} | {cell(said)} |"


def type_of(message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto) -> str:
    """Return a field's type as the page shows it."""
    name = SCALARS.get(field.type) or link(field.type_name)
    if field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    if field.proto3_optional:
        return f"optional {name}"
    if field.HasField("oneof_index"):
        return f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return name


def link(type_name: str) -> str:
    """Return a link to a message of this page."""
    name = type_name.removeprefix(PACKAGE)
    return f"[{name}](#{name.lower().replace('.', '')})"


def cell(text: str) -> str:
    """Make a text fit for a cell of a Markdown table."""
    return text.replace("|", "\\|")
