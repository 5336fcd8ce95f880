// Kills its own process before a call that changes a file: kill -9 in a place that can be had again.
#pragma once

namespace everlong::os {

// From now on SIGKILL ends this process before it makes the call behind `calls` more that change a file, whoever makes
// them: this program or SQLite. Below 0: none does.
void KillAfterCalls(long calls);
// How many such calls were made since.
long CallsMade();

}  // namespace everlong::os
