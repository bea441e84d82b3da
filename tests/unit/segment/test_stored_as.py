"""How the objects of a segment are stored: in the class and with the tags of the policy at its begin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.places import Places
from offloaderd.objects.stored_as import StoredAs
from tests.unit.rigs.rig import TOPIC, Rig
from tests.unit.segment.test_continue import finish, left_behind, made_rig

if TYPE_CHECKING:
    from offloaderd.topic.outage import TopicContext


async def test_all_owners_of_a_segment_store_it_in_the_same_class_with_the_same_tags() -> None:
    """What the policy said at its begin is recorded; index and manifest have the tags, and the bucket's class."""
    rig, store = await made_rig()
    made = rig.context

    def context(*given: Any, **named: Any) -> TopicContext:  # noqa: ANN401 - those of the rig
        """Have the places say what the settings of the rig do, as a daemon's places do."""
        found, said = made(*given, **named), rig.said
        places = [replace(one, storage_class=said.storage_class or "", tags=said.tags or "") for one in found.places]
        return replace(found, places=Places(*places))

    rig.context = context  # type: ignore[method-assign]
    rig.said = replace(rig.said, storage_class="STANDARD_IA", tags="who={tenant}/{namespace}-{cluster}, team=a")
    await left_behind(rig)
    rig.said = replace(rig.said, storage_class="ONEZONE_IA", tags="")
    await finish(rig, store)
    tags = {"who": "public/default-test", "team": "a"}
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert store.stored_as == {
        segment.keys.data: StoredAs("STANDARD_IA", tags),
        segment.keys.index: StoredAs("", tags),
        segment.keys.manifest: StoredAs("", tags),
    }


async def test_a_copy_is_stored_in_the_class_of_the_mirror() -> None:
    """The policy's class is for the topic's own place, also for what is copied back there; its tags are for both."""
    own, mirror = ("b", "seg/"), ("eu", "copies/")
    rig = Rig(places=(own, mirror))
    made = rig.context(rig.tree.connect(), source=None)
    home, there = made.places
    context = replace(made, places=Places(home, replace(there, storage_class="ONEZONE_IA")))
    policy = replace(rig.policy, place=own, mirror=mirror, storage_class="STANDARD_IA", tags="team=a")
    tags = {"team": "a"}
    assert context.place_for(policy, TOPIC).stored_as == StoredAs("STANDARD_IA", tags)
    assert context.copied_to(own, policy, TOPIC).stored_as == StoredAs("STANDARD_IA", tags)
    assert context.copied_to(mirror, policy, TOPIC).stored_as == StoredAs("ONEZONE_IA", tags)
