//! Every behaviour and property, as tests of one store.

/// Makes every behaviour and property a `#[test]` of the module that calls it.
///
/// `suite!(make)` runs them on the limiters that `make` opens: a [`Make`](crate::Make), which is a function of the clock
/// that returns an empty limiter.
///
/// `suite!(make, in several places)` is for a store that keeps its keys in several places and cannot decide on all of
/// them in one step. The limits of one check are then charged one after the other, and given back when one refuses:
/// threads may see a charge that is given back a moment later.
///
/// One crate can call it for several stores, each in a module of its own.
#[macro_export]
macro_rules! suite {
    ($make:expr) => {
        $crate::suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            agreement: [every_decision_is_the_algorithms_own]
            changing: [every_decision_under_changing_limits_is_the_algorithms_own]
            threads: [checks_of_many_keys_at_once_are_all_or_none_under_threads]
        }
    };
    ($make:expr, in several places) => {
        $crate::suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            agreement: [every_decision_on_one_key_is_the_algorithms_own]
            changing: [every_decision_on_one_key_under_changing_limits_is_the_algorithms_own]
            threads: [checks_of_many_keys_at_once_never_admit_too_much_under_threads]
        }
    };
    (@everywhere $make:expr) => {
        $crate::suite! { @behaviours $make,
            promises: [
                a_request_of_what_remains_is_allowed_and_one_more_is_not,
                waiting_as_long_as_told_succeeds_and_a_microsecond_less_fails,
                everything_is_back_after_the_reset_and_not_a_microsecond_before,
                more_remains_when_told_and_not_before,
                the_impatient_are_told_when_more_remains_for_them,
                a_cost_above_the_limit_never_succeeds,
                a_denial_costs_nothing,
                a_peek_charges_nothing_and_a_check_does_what_it_said,
                a_shaping_limit_says_how_long_to_wait,
                the_longest_wait_is_part_of_the_decision,
                a_cost_that_is_no_cost_is_an_error_and_charges_nothing,
                the_largest_log_admits_exactly_its_limit,
                the_largest_numbers_are_exact,
            ]
            keys: [
                a_key_nobody_has_seen_has_everything,
                keys_that_look_alike_are_apart,
                keys_that_differ_in_one_byte_are_apart,
                a_key_above_one_mebibyte_is_an_error_in_every_operation,
                a_name_above_four_kibibytes_is_an_error,
                an_ip_address_is_the_key_of_its_client,
                a_limit_may_be_text_and_other_text_is_an_error,
                two_scopes_with_equal_numbers_share_nothing,
                the_same_name_twice_is_the_same_scope,
                clones_share_everything,
                a_reset_key_has_spent_nothing_and_others_are_as_before,
                a_reset_of_an_unknown_key_does_nothing,
                a_log_lists_the_charges_that_count_oldest_first,
                only_a_log_lists_its_charges,
            ]
            clocks: [
                time_holds_still_while_the_clock_is_a_little_behind,
                a_new_clock_keeps_what_was_spent_and_locks_nobody_out,
                a_time_given_with_the_check_is_the_time_it_is_decided_at,
                the_end_of_time_is_a_time_like_any_other,
            ]
            refunds: [
                a_refund_gives_back_what_was_charged,
                a_refund_of_what_has_left_gives_nothing_back,
                a_refund_says_how_much_more_remains,
                a_receipt_of_another_key_or_scope_is_an_error_and_changes_nothing,
                receipts_of_several_limits_are_each_of_their_own_key,
                a_receipt_that_was_written_down_is_good_for_its_key,
                a_receipt_from_before_a_reset_gives_back_what_was_spent_since_at_most,
                a_refund_to_an_unknown_key_gives_nothing,
                a_denied_request_has_no_receipt,
                a_refunded_charge_is_not_listed_any_more,
                a_dropped_check_keeps_its_charge_unless_it_is_refunded_if_dropped,
                a_check_that_is_refunded_if_dropped_keeps_its_charge_when_it_is_awaited,
            ]
            together: [
                a_refused_request_spends_no_other_limits_quota,
                what_was_charged_together_stays_charged,
                many_new_keys_charged_at_once_are_all_charged,
                the_refuser_is_the_limit_one_must_wait_for_longest,
                how_many_more_fit_is_what_the_tightest_limit_says,
                the_same_scope_and_key_twice_is_one_charge_with_the_costs_added,
                a_shadow_never_refuses_and_is_charged_only_when_it_fits,
                shadows_alone_refuse_nothing,
                a_look_among_several_checks_refuses_and_is_never_charged,
                a_look_admits_what_a_charge_beside_it_refuses,
                a_shadow_look_refuses_nothing_and_is_never_charged,
                looks_alone_charge_nothing,
                a_look_beside_a_charge_of_the_same_key_adds_nothing,
                the_same_key_looked_at_twice_is_one_look_with_the_costs_added,
                a_check_of_no_limits_is_allowed,
                receipts_of_a_check_of_several_give_each_charge_back,
                one_bad_cost_charges_nothing_anywhere,
                limits_of_different_limiters_are_refused,
                a_check_of_several_is_decided_at_the_time_given,
            ]
            changed: [
                what_was_spent_stays_spent_under_any_other_limit,
                a_key_under_two_limits_by_turns_has_one_state,
                a_refusal_under_a_changed_limit_says_exactly_how_long_to_wait,
                the_wait_is_exact_from_any_limit_to_any_other,
                a_look_under_another_limit_keeps_nothing,
                a_refund_under_another_limit_gives_back_what_the_old_one_would,
                a_receipt_is_good_for_a_limit_of_the_same_kind_with_other_numbers,
                a_reset_forgets_a_key_whatever_limit_it_was_under,
                entries_are_those_of_the_limit_that_is_asked,
                of_several_limits_each_that_changed_is_carried_over,
                one_key_under_two_limits_of_one_name_is_one_charge,
                requests_of_one_batch_may_be_under_different_limits,
                a_changed_limit_on_a_new_clock_locks_nobody_out,
            ]
            batches: [
                the_requests_of_a_batch_are_decided_in_order_each_on_its_own,
                a_bad_request_in_a_batch_fails_alone,
                an_empty_batch_has_no_answers,
            ]
        }
        $crate::suite! { @properties $make,
            promises: [every_decision_keeps_its_promises]
            agreement: [
                every_refund_is_the_algorithms_own,
                a_crowd_of_keys_decides_as_each_would_alone,
            ]
            threads: [
                any_number_of_threads_admit_exactly_the_limit,
                threads_on_a_few_keys_admit_exactly_each_ones_limit,
                of_many_threads_that_bring_in_a_key_one_is_the_first,
                limits_charged_in_opposite_orders_neither_deadlock_nor_over_admit,
                charges_and_refunds_of_many_threads_add_up,
                threads_under_every_limit_of_one_name_admit_exactly_what_one_would,
                a_limit_raised_under_threads_admits_exactly_the_difference_more,
                limits_of_two_sizes_at_once_admit_exactly_the_larger_under_threads,
            ]
        }
    };
    (@behaviours $make:expr, $($module:ident: [$($name:ident,)*])*) => {
        $($(
            #[test]
            fn $name() {
                $crate::store::block_on($crate::$module::$name($make));
            }
        )*)*
    };
    (@properties $make:expr, $($module:ident: [$($name:ident $(,)?)*])*) => {
        $($(
            #[test]
            fn $name() {
                $crate::$module::$name($make);
            }
        )*)*
    };
}

/// Makes every behaviour and property of holds a `#[test]` of the module that calls it, for a store that has holds.
///
/// Takes the same function as [`suite!`](crate::suite).
#[macro_export]
macro_rules! hold_suite {
    ($make:expr) => {
        $crate::suite! { @behaviours $make,
            holds: [
                held_units_count_as_spent_and_unused_ones_are_free_at_once,
                released_hold_charges_nothing,
                use_beyond_a_hold_is_charged_up_to_one_whole_limit,
                settlement_in_part_sent_twice_charges_once,
                hold_is_charged_in_full_at_its_expiry,
                dropped_hold_stays_until_it_expires,
                reset_forgets_the_holds_of_its_key,
                holds_keep_their_expiry_on_a_clock_that_steps_back_and_move_with_a_new_one,
                extension_adds_units_that_fit_and_moves_the_expiry,
                key_has_a_bounded_number_of_holds,
                units_that_cannot_be_held_are_an_error,
                open_holds_stay_valid_when_the_limit_changes,
                checks_of_several_limits_beside_holds_are_all_or_none,
            ]
        }
        $crate::suite! { @properties $make,
            holds: [every_operation_on_holds_is_the_algorithms_own]
            threads: [threads_that_reserve_and_settle_admit_exactly_what_one_would]
        }
    };
}
