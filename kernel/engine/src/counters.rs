//! An engine's counters.

virtio::counters! {
    /// Where one engine's time went. A turn is busy if it moved at least one request.
    EngineCounters {
        /// Turns that found work.
        busy_turns,
        /// Turns that found none.
        idle_turns,
        /// Clock ticks spent in busy turns.
        busy_cycles,
        /// Clock ticks spent in idle turns.
        idle_cycles,
        /// Turns, busy or idle, that took longer than the limit of
        /// [`Engine::set_long_turn`](crate::engine::Engine::set_long_turn).
        long_turns,
        /// Clock ticks of the longest of them that found no work. Such a turn does little, so for most of that time something
        /// else had the core: firmware in system management mode, or a hypervisor beneath. 0: no idle turn was long.
        longest_idle_turn,
        /// Requests moved.
        requests,
        /// Visits to a queue, including those that found nothing. [`Fine`](crate::schedule::Fine) does not visit a
        /// polled queue that is empty.
        visits,
    }
}
