"""How gradients travel between the ranks, for the engineer: hops, and bytes over the slowest link."""

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import RunView


def exchange(words: Wording, view: RunView) -> tuple[str, str]:
    """Return the hops of the exchange in use, and a note with bytes, or why there is only one level."""
    route, num_ranks = view.route, view.summary.world_size
    name = words.say("uncompressed") if view.plan.codec == "none" else view.plan.codec
    flat = words.say("{codec} between all {ranks} ranks", codec=name, ranks=words.number(num_ranks))
    if route is None:
        return flat, ""
    if view.plan.exchange == "flat" and not route.flat_reason:
        return flat, words.say("asked for, though nodes could average inside first")
    # What the agent states holds for the codec's default parameters and exemptions.
    if route.node_bytes is None:
        sent = words.say("about {bytes} sent by each rank per step", bytes=words.bytes(route.wire_bytes))
        return flat, words.enumerate((_reason(words, route.flat_reason), sent))
    num_nodes = max(1, view.trust.num_nodes)
    hops = words.say(
        "reduce-scatter among {local} ranks of a node → {codec} between {nodes} nodes → all-gather inside",
        local=words.number(num_ranks // num_nodes),
        codec=name,
        nodes=words.number(num_nodes),
    )
    sent = words.say("about {bytes} leave each node per step", bytes=words.bytes(route.node_bytes))
    if view.plan.exchange == "hybrid":
        sent = words.enumerate((words.say("bfloat16 inside nodes"), sent))
    return hops, sent


def _reason(words: Wording, reason: str) -> str:
    """Return why the exchange has one level; what an agent of another version says stays as it came."""
    known = {
        "all ranks are on one node": words.say("all ranks are on one node"),
        "every node has one rank": words.say("every node has one rank"),
        "nodes have different numbers of ranks": words.say("nodes have different numbers of ranks"),
        "the ranks' nodes are not known": words.say("the ranks' nodes are not known"),
        "nothing is compressed": words.say("nothing is compressed"),
        "the codec needs whole matrices": words.say("the codec needs whole matrices"),
    }
    return known.get(reason, reason)
