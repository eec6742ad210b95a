//! The sabotages: each omits one safeguard of the lock, and a test of `../tests` must fail.

/// The environment variable that selects a sabotage by name.
pub const VARIABLE: &str = "REDIS_LOCK_SABOTAGE";

/// Stands for the file of a row that changes a script.
pub const LUA: &str = "Lua";

/// A change of one place in one file of the lock.
pub struct Row {
    /// The name of the sabotage.
    pub name: &'static str,
    /// The file in `../src`, or [`LUA`].
    pub file: &'static str,
    /// A text that occurs exactly once in the file: an expression, or statements that end with a
    /// semicolon.
    pub original: &'static str,
    /// What replaces it.
    pub wrong: &'static str,
    /// The test that must fail: of `lock.rs`, or `FILE::TEST`.
    pub test: &'static str,
}

const fn row(
    name: &'static str,
    file: &'static str,
    original: &'static str,
    wrong: &'static str,
    test: &'static str,
) -> Row {
    Row { name, file, original, wrong, test }
}

/// All sabotages.
pub const ROWS: &[Row] = &[
    // One owner at a time.
    row(
        "GrantsAHeldLock",
        LUA,
        "if not holder and (fair",
        "if (fair",
        "one_owner_at_a_time_with_increasing_tokens",
    ),
    row(
        "AnyoneUnlocks",
        LUA,
        "if holder == owner then\n        redis.call('del', lock)",
        "if holder then\n        redis.call('del', lock)",
        "an_unlock_does_not_release_the_lock_of_the_next_owner",
    ),
    row(
        "AnyoneRenews",
        LUA,
        "holder == ARGV[2 * i - 1] and",
        "holder and",
        "a_lock_that_was_taken_away_is_reported_and_left_to_its_owner",
    ),
    row(
        "OwnerKeepsItsName",
        "client.rs",
        "self.owners.fetch_add(1, Relaxed)",
        "0",
        "one_owner_at_a_time_with_increasing_tokens",
    ),
    row(
        "FirstUnlockReleases",
        "hold.rs",
        "state.guards -= 1;",
        "state.guards = 0;",
        "an_owner_may_take_its_lock_again",
    ),
    row(
        "ReEntryDoesNotAsk",
        "lock.rs",
        "watchdog::renew(&self.shared.calls, std::slice::from_ref(hold)).await?;",
        "",
        "re_entry_detects_a_lost_lock",
    ),
    row(
        "OtherOwnerIsNoOwner",
        LUA,
        "return holder == owner and 1 or holder and -1 or 0",
        "return holder == owner and 1 or 0",
        "faults::an_unlock_says_who_has_the_lock",
    ),
    // Tokens and leases.
    row(
        "TokensEnd",
        LUA,
        "if token >= 9007199254740992 then",
        "if false then",
        "faults::a_token_without_successor_is_an_error",
    ),
    row(
        "TokenIsForgottenBeforeItsTime",
        LUA,
        "86400 + behind",
        "86400",
        "faults::a_token_is_kept_until_the_clock_has_passed_it",
    ),
    row(
        "TokensRestart",
        LUA,
        "math.max(now, (redis.call('get', token_key) or 0) + 1)",
        "(redis.call('get', token_key) or 0) + 1",
        "lost_data_is_noticed",
    ),
    row(
        "TokensRepeat",
        LUA,
        "redis.call('get', token_key) or 0) + 1)",
        "0))",
        "tokens_increase_when_the_clock_is_behind",
    ),
    row(
        "LeaseWithoutEnd",
        LUA,
        "redis.call('set', lock, owner, 'px', lease)",
        "redis.call('set', lock, owner)",
        "without_a_watchdog_the_lock_is_lost_with_its_lease",
    ),
    row(
        "ShortLeases",
        "options.rs",
        "*lease / TICKS < tick",
        "false",
        "faults::leases_below_three_ticks_are_rejected",
    ),
    row(
        "LateGrantIsReturned",
        "lock.rs",
        "hold.check()?;\n        self.hold = Some(hold);",
        "self.hold = Some(hold);",
        "faults::a_task_that_was_stalled_does_not_get_a_lock_that_is_over",
    ),
    // Renewal.
    row(
        "NoRenewal",
        "watchdog.rs",
        "!hold.options.has_watchdog()",
        "true",
        "renewals_of_many_locks_share_calls",
    ),
    row(
        "AlwaysRenews",
        "watchdog.rs",
        "!hold.options.has_watchdog()",
        "false",
        "without_a_watchdog_the_lock_is_lost_with_its_lease",
    ),
    row(
        "RenewsOnce",
        "watchdog.rs",
        "self.put(hold, due).is_err()",
        "false",
        "renewals_of_many_locks_share_calls",
    ),
    row(
        "LeasesShareCalls",
        "lock.rs",
        "(shared.calls.connection.server.group(&keys.lock), options.lease_time())",
        "(shared.calls.connection.server.group(&keys.lock), Duration::ZERO)",
        "faults::locks_with_different_leases_do_not_share_calls",
    ),
    row(
        "FailedRenewalIsRepeatedLater",
        "watchdog.rs",
        "lease / 6",
        "lease / 3",
        "faults::a_failed_renewal_is_repeated_after_a_sixth_of_the_lease",
    ),
    row(
        "OneLockPerCall",
        "watchdog.rs",
        "batch.len() < BATCH",
        "batch.is_empty()",
        "renewals_of_many_locks_share_calls",
    ),
    row(
        "RenewsAfterUnlock",
        "guard.rs",
        "releaser.watchdog.unwatch(&self.hold);",
        "",
        "an_unlock_leaves_no_timeout",
    ),
    row(
        "NoMaximumHoldingTime",
        "hold.rs",
        "options.max_hold_time().and_then(|time| start.checked_add(time))",
        "None",
        "the_watchdog_renews_until_the_maximum_holding_time",
    ),
    row(
        "LostLockIsRenewed",
        "hold.rs",
        "matches!(state.phase, Phase::Held) && !self.reaches_the_latest(&state)",
        "!self.reaches_the_latest(&state)",
        "faults::a_lost_lock_is_not_renewed",
    ),
    row("LostLockIsWatched", "lock.rs", "lost.upgrade()", "None", "faults::re_entry_detects_another_owner"),
    row(
        "ClusterIsOneGroup",
        "connection.rs",
        "slot(key)",
        "slot(\"\")",
        "cluster::locks_of_many_slots_are_renewed_and_released",
    ),
    // The holder is told.
    row(
        "OtherOwnerIsNoLoss",
        "watchdog.rs",
        "hold.lose(Loss::OtherOwner)",
        "()",
        "faults::re_entry_detects_another_owner",
    ),
    row(
        "StoppedTimerIsNoLoss",
        "hold.rs",
        "hold.lose(Loss::Timer);",
        "",
        "a_stopped_timer_is_a_loss_and_an_error",
    ),
    row(
        "HeldTooLongIsNoReason",
        "hold.rs",
        "self.reaches_the_latest(state)",
        "false",
        "faults::the_maximum_holding_time_is_the_reason",
    ),
    row(
        "PanicOfADropSpreads",
        "hold.rs",
        "callbacks.into_iter().for_each(forget);",
        "drop(callbacks);",
        "faults::a_callback_that_panics_while_it_is_dropped_has_no_effect",
    ),
    row("NoOwnerIsNoLoss", "watchdog.rs", "hold.lose(Loss::NoOwner)", "()", "re_entry_detects_a_lost_lock"),
    row(
        "EndOfLeaseIsNoLoss",
        "hold.rs",
        "hold.lease_may_have_ended(&timeout.timer());",
        "",
        "without_a_watchdog_the_lock_is_lost_with_its_lease",
    ),
    row(
        "LateCallbackIsForgotten",
        "hold.rs",
        "let loss = loss.clone();\n                drop(state);\n                call(callback, loss);",
        "let _ = loss; drop(callback);",
        "a_lock_that_was_taken_away_is_reported_and_left_to_its_owner",
    ),
    row(
        "PanicSpreads",
        "hold.rs",
        "let _ = panic::catch_unwind(AssertUnwindSafe(|| callback(loss)));",
        "callback(loss);",
        "a_lock_that_was_taken_away_is_reported_and_left_to_its_owner",
    ),
    row(
        "ReasonIsForgotten",
        "hold.rs",
        "self.state().error_text = Some(error.to_string());",
        "let _ = error;",
        "without_redis_calls_fail_and_holders_are_told",
    ),
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
        "faults::a_late_caller_takes_a_free_fair_lock",
    ),
    row(
        "RefusalWakesNobody",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "faults::a_refused_caller_passes_a_free_fair_lock_on",
    ),
    row(
        "DeadCallersBlockAFreeLock",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "faults::a_free_fair_lock_passes_callers_that_died_with_its_holder",
    ),
    row(
        "DeletionIsNotNoticed",
        LUA,
        "if reserved > clock() + claim then",
        "if false then",
        "faults::a_deleted_lock_passes_a_caller_that_died",
    ),
    row(
        "DeadCallersDelayMoreAndMore",
        LUA,
        "return {0, reserved - clock(), 0}",
        "return {0, reserved - clock(), place - 1}",
        "faults::a_free_fair_lock_passes_callers_that_died_with_its_holder",
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
        "faults::without_a_subscription_callers_poll",
    ),
    // Redis fails.
    row(
        "GrantIsLostWithTheConnection",
        "calls.rs",
        "self.connection.call(script, until(end)).await",
        "Err(LockError::Redis(error))",
        "faults::a_lock_that_was_granted_is_not_lost_with_the_connection",
    ),
    row(
        "ReleaseIsLostWithTheConnection",
        "calls.rs",
        "self.connection.call(&script, until(end)).await",
        "Ok(Found::NoOwner)",
        "faults::calls_survive_a_connection_that_was_closed_between_them",
    ),
    row(
        "LostAnswerIsALoss",
        "calls.rs",
        "Err(error.into())",
        "Ok(Found::NoOwner)",
        "faults::a_lock_that_was_granted_is_not_lost_with_the_connection",
    ),
    row(
        "ReleaseIsNotRepeated",
        "calls.rs",
        "calls.release_again(&keys, &owner, &options).await",
        "_ = (calls, keys, owner, options)",
        "faults::a_release_is_repeated_after_an_outage",
    ),
    row(
        "StoppedTimerKeepsTheLock",
        "calls.rs",
        "return self.release_without_timer(keys, owner, options).await;",
        "return;",
        "faults::a_stopped_timer_does_not_prevent_the_release",
    ),
    row(
        "LongLeasesWait",
        "options.rs",
        "(self.lease / 6).min(CALL)",
        "self.lease / 6",
        "faults::a_call_ends_however_long_the_lease_is",
    ),
    row(
        "CallsWaitForever",
        "connection.rs",
        "self.timer.timeout(timeout, self.try_call(script, &mut number))",
        "self.timer.timeout(timeout * 1_000, self.try_call(script, &mut number))",
        "a_redis_that_does_not_answer_is_noticed",
    ),
    row(
        "NoNewConnection",
        "connection.rs",
        "is_of_connection(&error)",
        "false",
        "without_redis_calls_fail_and_holders_are_told",
    ),
    // Redis refuses.
    row(
        "ScriptIsUnknown",
        "connection.rs",
        "link.query(&script.by_text()).await",
        "link.query(&script.by_hash()).await",
        "refusals::a_user_with_few_rights_can_lock",
    ),
    // Blocking.
    row(
        "BlockingDropDoesNotWait",
        "blocking.rs",
        "_ = self.runtime.block_on(guard.unlock());",
        "drop(guard);",
        "blocking::a_dropped_guard_has_released_the_lock",
    ),
    row(
        "BlockingDropIsForgotten",
        "blocking.rs",
        "locks.keep(&runtime);",
        "",
        "blocking::a_guard_that_is_dropped_on_the_thread_of_a_runtime_is_released",
    ),
    row(
        "RuntimeEndsBeforeTheRelease",
        "blocking.rs",
        "locks.keep(&runtime);",
        "",
        "blocking::a_release_is_repeated_after_the_client_was_dropped",
    ),
    row(
        "BlockingDropBlocksTheTimer",
        "blocking.rs",
        "guard.check().is_ok()",
        "true",
        "blocking::a_callback_may_drop_its_guard_without_an_answer",
    ),
];
