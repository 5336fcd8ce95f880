#include "writer_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace everlong::store {
namespace {

constexpr const char* kOwnerBegins = "pid ";

std::string HostName() {
  std::array<char, 256> name = {};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// The files of all locks of this process. An flock is held until the last copy of its descriptor is closed, and a fork
// has a copy of each: it closes them at once, or its parent's memories would stay locked for as long as it lives.
class LockFiles {
 public:
  // It is never destroyed, because a thread may close a memory while the process ends.
  static LockFiles& Get() {
    static LockFiles& files = *new LockFiles;
    return files;
  }
  void Add(UniqueFd* file) {
    const std::scoped_lock lock(mutex_);
    files_.insert(file);
  }
  void Remove(UniqueFd* file) {
    const std::scoped_lock lock(mutex_);
    files_.erase(file);
  }

 private:
  LockFiles() {
    ::pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); }, [] { Get().CloseAll(); });
  }
  // Call it in a fork, after its only thread locked the mutex before the fork.
  void CloseAll() {
    for (UniqueFd* const file : files_) *file = UniqueFd();
    files_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<UniqueFd*> files_;
};

}  // namespace

class WriterLock::Held {
 public:
  explicit Held(UniqueFd file) : file_(std::move(file)) { LockFiles::Get().Add(&file_); }
  ~Held() {
    LockFiles::Get().Remove(&file_);
    // Unlock it too, because a fork that has not closed its copy yet would hold the lock.
    if (file_.get() >= 0) ::flock(file_.get(), LOCK_UN);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  [[nodiscard]] bool IsAt(const FilePath& path) const { return IsNamed(file_, path); }

 private:
  UniqueFd file_;
};

WriterLock::WriterLock(std::unique_ptr<Held> held) : held_(std::move(held)) {}
WriterLock::WriterLock(WriterLock&&) noexcept = default;
WriterLock& WriterLock::operator=(WriterLock&&) noexcept = default;
WriterLock::~WriterLock() = default;

Result<WriterLock> WriterLock::Acquire(const FilePath& folder) {
  const FilePath path = folder / kLockFile;
  UniqueFd file;
  int locked = -1;
  do {
    // A writer's lock is a plain file. Anything else of that name is nobody's lock.
    EVERLONG_ASSIGN_OR_RETURN(const FileKind kind, KindOf(path));
    if (kind == FileKind::kOther) EVERLONG_RETURN_IF_ERROR(RemoveFile(path));
    EVERLONG_ASSIGN_OR_RETURN(file, OpenFile(path, O_RDWR | O_CREAT));
    do {
      locked = ::flock(file.get(), LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    // Somebody may have removed the file since it was opened: another would lock the one that has its name by now.
  } while (locked == 0 && !IsNamed(file, path));
  if (locked != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError("cannot lock", path, errno);
    std::string owner(256, '\0');
    EVERLONG_ASSIGN_OR_RETURN(const int64_t size, ReadAt(file, path, 0, std::as_writable_bytes(std::span(owner))));
    owner.resize(static_cast<size_t>(size));
    if (owner.empty()) owner = "a process that has not named itself yet";
    while (owner.ends_with('\n')) owner.pop_back();
    return BusyError("memory '" + folder.string() + "' is being written by " + owner +
                     "; close it there, or open it read-only here");
  }
  const std::string owner = kOwnerBegins + std::to_string(::getpid()) + " on host " + HostName() + "\n";
  const std::span<const std::byte> text = std::as_bytes(std::span(owner));
  if (::ftruncate(file.get(), 0) != 0) return ErrnoError("cannot write to", path, errno);
  EVERLONG_RETURN_IF_ERROR(WriteAt(file, path, 0, std::span(&text, 1)));
  return WriterLock(std::make_unique<Held>(std::move(file)));
}

bool WriterLock::IsStillIn(const FilePath& folder) const {
  return folder.IsStillThere() && held_->IsAt(folder / kLockFile);
}

bool WriterLock::IsForeign(const FilePath& folder) {
  const FilePath path = folder / kLockFile;
  const Result<UniqueFd> file = OpenFile(path, O_RDONLY);
  // There is none, or one that Acquire cannot open either. What is no plain file is nobody's lock.
  if (!file.ok()) return file.status().code() == StatusCode::kCorrupt;
  std::string text(std::strlen(kOwnerBegins), '\0');
  const Result<int64_t> size = ReadAt(*file, path, 0, std::as_writable_bytes(std::span(text)));
  return !size.ok() || (*size > 0 && text != kOwnerBegins);  // empty if a crash came in between
}

}  // namespace everlong::store
