"""Probes, receives of any tag, cancelled receives, and waiting for some of several works. See
message_workers.py."""

import group_team
import message_workers as cases
import pytest

ENVIRONMENTS = {"shared memory": {}, "TCP": {"DLDIST_SHM": "0"}}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def team(request):
    teams = group_team.Teams()
    yield lambda: teams(2, worker=cases.member, env=ENVIRONMENTS[request.param])
    teams.close()


def test_probe_finds_messages_without_receiving_them(team):
    team().run(cases.probes)
    team().run(cases.probes_of_the_default_group)


def test_message_to_or_from_no_rank_completes_immediately(team):
    team().run(cases.messages_without_a_peer)
    team().run(cases.line_of_ranks)
    team().run(cases.default_group_without_a_peer)


def test_receive_of_any_tag_reports_the_tag_and_source(team):
    team().run(cases.receive_of_any_tag)
    team().run(cases.object_of_any_tag)


def test_receive_can_be_cancelled_until_a_message_matches_it(team):
    team().run(cases.cancelled_receives)


def test_wait_any_finds_the_first_completed_work(team):
    team().run(cases.first_of_several)
    team().run(cases.first_of_several_groups)
    team().run(cases.first_of_other_works)


def test_wait_any_raises_the_failure_of_a_work(team):
    team().run(cases.failure_of_one)
    team().run(cases.first_success_before_a_failure)
    team().run(cases.cancelled_by_another_thread)


def test_forked_child_cannot_wait_for_works_of_its_parent(team):
    team().run(cases.works_of_a_forked_parent)


def test_message_of_a_rank_to_itself_completes_send_and_receive(team):
    team().run(cases.message_to_this_rank_ends_both_works)
    alone = group_team.Teams()
    alone(1, worker=cases.member).run(cases.message_to_this_rank_ends_both_works)
    alone.close()


def test_asynchronous_objects_keep_the_order_of_messages(team):
    team().run(cases.objects_keep_their_order)
    team().run(cases.objects_meet_blocking_calls)
    team().run(cases.objects_to_this_rank)


def test_asynchronously_sent_objects_arrive_without_a_further_call(team):
    team().run(cases.objects_arrive_while_the_program_does_other_things)


def test_wait_any_finds_the_first_object_and_other_receives_can_be_cancelled(team):
    team().run(cases.first_of_several_objects)


def test_failed_messages_of_objects_leave_the_group_usable(team):
    team().run(cases.failures_of_objects)
    team().run(cases.objects_without_a_channel)


def test_default_group_sends_objects_asynchronously(team):
    team().run(cases.objects_of_the_default_group)


def test_wait_all_waits_for_every_work(team):
    team().run(cases.wait_for_all)


def test_receive_that_times_out_lists_unread_messages(team):
    team().run(cases.unread_messages_are_named)
