//! One core: the loop that joins a driver with the machines, mailboxes, counters.
