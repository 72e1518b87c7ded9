//! Runs the models.

#[test]
fn every_number_is_taken_once() {
    placewright_loom::every_number_is_taken_once();
}

#[test]
fn an_integer_emptied_and_filled_concurrently_is_not_lost() {
    placewright_loom::an_integer_emptied_and_filled_concurrently_is_not_lost();
}

#[test]
fn the_last_to_count_has_exclusive_access() {
    placewright_loom::the_last_to_count_has_exclusive_access();
}

#[test]
fn a_lent_value_is_returned() {
    placewright_loom::a_lent_value_is_returned();
}

#[test]
fn a_run_ends_and_the_caller_sees_it() {
    placewright_loom::a_run_ends_and_the_caller_sees_it();
}

#[test]
fn independent_operations_are_shared() {
    placewright_loom::independent_operations_are_shared();
}

#[test]
fn a_run_that_fails_ends() {
    placewright_loom::a_run_that_fails_ends();
}

#[test]
fn a_caller_with_a_deadline_sees_what_ends_later() {
    placewright_loom::a_caller_with_a_deadline_sees_what_ends_later();
}

#[test]
fn a_successor_of_two_asynchronous_operations_is_executed_once() {
    placewright_loom::a_successor_of_two_asynchronous_operations_is_executed_once();
}

#[test]
fn a_caller_with_a_deadline_sees_an_interrupt() {
    placewright_loom::a_caller_with_a_deadline_sees_an_interrupt();
}

#[test]
fn a_command_that_is_waited_for_comes_after_earlier_ones() {
    placewright_loom::a_command_that_is_waited_for_comes_after_earlier_ones();
}

#[test]
fn what_an_assistant_leaves_is_executed_in_order() {
    placewright_loom::what_an_assistant_leaves_is_executed_in_order();
}

#[test]
fn a_command_executed_at_once_overtakes_nothing() {
    placewright_loom::a_command_executed_at_once_overtakes_nothing();
}

#[test]
fn devices_that_copy_from_each_other_end() {
    placewright_loom::devices_that_copy_from_each_other_end();
}

#[test]
fn what_an_assistant_leaves_is_executed_by_the_thread() {
    placewright_loom::what_an_assistant_leaves_is_executed_by_the_thread();
}
