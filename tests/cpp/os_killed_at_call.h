// Kills its own process before a call that changes a file: kill -9 in a place that can be had again.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

namespace everlong::os {

// From now on SIGKILL ends this process before it makes the call behind `calls` more that change a file, whoever makes
// them: this program or SQLite. Below 0: none does.
void KillAfterCalls(long calls);
// How many such calls were made since.
long CallsMade();

// What a process did before it ended.
struct Ended {
  std::set<int64_t> told;
  bool died = false;  // by SIGKILL; else it ended well, or the test has failed
};
// Fork, and call work(tell) in the child, which tells numbers of [0, 255] and must end it with _exit.
using Tell = std::function<void(int64_t number)>;
Ended RunInChild(const std::function<void(const Tell& tell)>& work);

}  // namespace everlong::os
