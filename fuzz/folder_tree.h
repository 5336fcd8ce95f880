// Folders as values: the bytes of their files, and what they look like from outside.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace everlong::fuzz {

using Files = std::map<std::string, std::string>;  // bytes, by the path within the folder

Files ReadFiles(const std::filesystem::path& folder);
// Make the folder, with these files in it.
void WriteFiles(const std::filesystem::path& folder, const Files& files);

// Return the bytes of a plain file that has no other name and is small. Nothing else is changed by these programs: what
// is behind a link is not theirs.
std::optional<std::string> OwnBytes(const std::filesystem::path& file);
// Put bytes in the place of what OwnBytes returned.
void PutBytes(const std::filesystem::path& file, const std::string& bytes);

// What lies beneath a folder, by path: its kind, its mode, when it changed, and its bytes or where it leads.
using Look = std::map<std::string, std::string>;
// Return it. `without_log` leaves out what SQLite makes beside a catalog that is only read: -shm, and an empty -wal.
Look LookAt(const std::filesystem::path& folder, bool without_log = false);
// Abort with what differs, if anything does.
void RequireSame(const Look& before, const Look& after, const char* where);

// A folder that goes with the process. It is in RAM where the system has such a place: nothing there waits for a disk.
const std::filesystem::path& Scratch();

}  // namespace everlong::fuzz
