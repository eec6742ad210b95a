//! Callers that wait.

use super::{LUA, Row, row};

pub(super) const ROWS: &[Row] = &[
    // Waiting.
    row("UnlockWakesNobody", LUA, "tell(head, 0)", "", "a_waiting_caller_is_woken"),
    row(
        "NewHolderIsNotAnnounced",
        LUA,
        "if head then tell(head, lease) end",
        "",
        "the_next_waiting_caller_learns_when_the_new_lease_ends",
    ),
    row(
        "QueueIsOvertaken",
        LUA,
        "(fair == '0' or not head or head == owner)",
        "true",
        "nobody_overtakes_the_queue_of_a_fair_lock",
    ),
    row(
        "DeadCallersKeepTheirPlace",
        LUA,
        "or expires > clock() then",
        "or true then",
        "nobody_overtakes_the_queue_of_a_fair_lock",
    ),
    row(
        "LateCallerLosesItsPlace",
        LUA,
        "if head == ARGV[1] or expires",
        "if expires",
        "queue::a_late_caller_takes_a_free_fair_lock",
    ),
    row(
        "RefusalWakesNobody",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "queue::a_refused_caller_passes_a_free_fair_lock_on",
    ),
    row(
        "DeadCallersBlockAFreeLock",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "queue::a_free_fair_lock_passes_callers_that_died_with_its_holder",
    ),
    row(
        "DeletionIsNotNoticed",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "queue::a_deleted_lock_passes_a_caller_that_died",
    ),
    row(
        "DeadCallersDelayMoreAndMore",
        LUA,
        "return {0, reserved - clock(), 0}",
        "return {0, reserved - clock(), place * 20}",
        "queue::a_free_fair_lock_passes_callers_that_died_with_its_holder",
    ),
    row(
        "NoPlaceIsLeft",
        LUA,
        "    else\n        redis.call('zrem', queue, owner)\n        redis.call('hdel', seen, owner)\n    end\n",
        "    end\n",
        "a_caller_that_gives_up_leaves_nothing",
    ),
    row(
        "ReconnectWakesNobody",
        "wakeup.rs",
        "wakeups.wake_all();",
        "",
        "waiting_callers_survive_the_loss_of_their_messages",
    ),
    row(
        "LeaseHidesAFreeLock",
        "wakeup.rs",
        "*unread != Some(Wake::TryNow)",
        "true",
        "a_caller_that_is_slow_to_read_its_messages_tries",
    ),
    row(
        "NoPoll",
        "lock.rs",
        "wait.min(options.poll_time())",
        "wait.min(options.poll_time().max(Duration::from_secs(3_600)))",
        "a_poll_wakes_without_messages",
    ),
    row(
        "EndOfLeaseIsNotAwaited",
        "lock.rs",
        "wait.map_or(Duration::MAX, Duration::from_millis)",
        "Duration::MAX",
        "queue::a_crash_of_the_holder_and_the_first_waiting_caller_costs_the_rest_of_the_lease",
    ),
    row(
        "DroppedCallIsForgotten",
        "lock.rs",
        "releaser.release_later(keys, owner, options);",
        "let _ = (releaser, keys, owner, options);",
        "a_caller_that_gives_up_leaves_nothing",
    ),
    row(
        "WaitsForMessages",
        "lock.rs",
        "patience.at_most(options.call_timeout().min(READY))",
        "options.call_timeout()",
        "connections::without_a_subscription_callers_poll",
    ),
];
