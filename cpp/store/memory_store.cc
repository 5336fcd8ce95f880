// How a store is made and opened.
#include "everlong/store/memory_store.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/base/out_of_memory.h"
#include "everlong/store/free_ram.h"
#include "manifest_file.h"
#include "reserve.h"
#include "writer.h"

namespace everlong::store {
namespace {

// Whether there is anything of that name but an empty folder.
bool IsTaken(const FilePath& path) {
  const Result<FileKind> kind = KindOf(path);
  if (!kind.ok() || *kind == FileKind::kNone) return !kind.ok();
  const Result<std::vector<std::string>> names = NamesIn(path);
  return *kind != FileKind::kFolder || !names.ok() || !names->empty();
}

// kAlreadyExists when something in `folder` has a name of ours: a memory, or what is somebody else's. What a crash left
// of an earlier Create is in nobody's way. The catalog is looked at with `may_open_catalog` alone: that would disturb
// one who is making a memory there.
Status RequireFree(const FilePath& folder, bool may_open_catalog) {
  if (Exists(folder / kManifestFile) || IsTaken(folder / kSegmentFolder)) {
    return AlreadyExistsError("there is a memory in '" + folder.string() + "' already");
  }
  const auto taken = [&folder](const std::string& name) {
    return AlreadyExistsError("'" + (folder / name).string() +
                              "' is there already, and would be lost where a memory has a place of that name");
  };
  for (const char* const ours : {kOwnFileFolder, kIndexFolder}) {
    if (IsTaken(folder / ours)) return taken(ours);
  }
  if (WriterLock::IsForeign(folder)) return taken(kLockFile);
  if (IsReserveForeign(folder)) return taken(kReserveFile);
  const FilePath catalog = folder / kCatalogFile;
  if (!may_open_catalog || !Exists(catalog) || CatalogFile::HoldsNothing(catalog)) {
    return OkStatus();
  }
  return taken(kCatalogFile);
}

Status ValidateOptions(const StoreOptions& options) {
  if (options.segment_bytes < 1) {
    return InvalidArgumentError("segment_bytes is " + std::to_string(options.segment_bytes) + ", expected at least 1");
  }
  if (options.host_bytes && *options.host_bytes < 0) {
    return InvalidArgumentError("host_bytes is " + std::to_string(*options.host_bytes) + ", expected at least 0");
  }
  if (options.queue_bytes < 0) {
    return InvalidArgumentError("queue_bytes is " + std::to_string(options.queue_bytes) + ", expected at least 0");
  }
  return OkStatus();
}

// A migration writes the catalog first, so no catalog is older than the manifest says.
Status RequireSchema(Catalog& catalog, const Manifest& manifest, const FilePath& folder) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, catalog.Schema());
  if (schema >= std::min(manifest.format_version, kCatalogSchema)) return OkStatus();
  return CorruptError("catalog '" + (folder / kCatalogFile).string() + "' has format " + std::to_string(schema) +
                      ", its memory format " + std::to_string(manifest.format_version));
}

StoreOptions WithHostBytes(StoreOptions options) {
  if (!options.host_bytes) options.host_bytes = FreeRamBytes() / 2;
  return options;
}

// Make folder, lock and empty catalog; no manifest yet.
Result<StoreState::Rooms> MakeFolderRooms(const std::filesystem::path& given, const StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(const std::filesystem::path path, AbsolutePath(given));
  StoreState::Rooms rooms;
  rooms.folder_existed = Exists(path);
  EVERLONG_RETURN_IF_ERROR(MakeFolder(path));
  EVERLONG_ASSIGN_OR_RETURN(const FilePath folder, FilePath::Open(path));
  // Before the lock's file is made there, so that a refusal changes nothing.
  EVERLONG_RETURN_IF_ERROR(RequireFree(folder, !Exists(folder / kLockFile)));
  EVERLONG_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Acquire(folder));
  EVERLONG_RETURN_IF_ERROR(RequireFree(folder, true));  // another may have been quicker
  EVERLONG_RETURN_IF_ERROR(CatalogFile::Remove(folder / kCatalogFile));
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog,
                            Catalog::Over(CatalogFile::Create(folder / kCatalogFile), *options.host_bytes));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentFiles> segments,
                            SegmentFiles::OpenForWriting(folder / kSegmentFolder, 0, options.segment_bytes));
  EVERLONG_RETURN_IF_ERROR(SyncFolder(folder));
  rooms.unfinished = true;
  rooms.folder = folder;
  rooms.lock = std::move(lock);
  rooms.catalog = std::move(catalog);
  rooms.files = segments.get();
  rooms.segments = std::move(segments);
  return rooms;
}

}  // namespace

Result<std::unique_ptr<StoreState>> StoreState::MakeUnfinished(const std::optional<std::filesystem::path>& folder,
                                                               const Manifest& manifest, const StoreOptions& given) {
  EVERLONG_RETURN_IF_ERROR(ValidateManifest(manifest));
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(given));
  const StoreOptions options = WithHostBytes(given);
  if (manifest.format_version != kFormatVersion) {
    return InvalidArgumentError("manifest: format_version is " + std::to_string(manifest.format_version) +
                                ", expected " + std::to_string(kFormatVersion));
  }
  Rooms rooms;
  if (folder) {
    EVERLONG_ASSIGN_OR_RETURN(rooms, MakeFolderRooms(*folder, options));
  } else {
    EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Over(CatalogFile::CreateInRam(), *options.host_bytes));
    rooms.segments = MakeRamSegments();
  }
  rooms.manifest = manifest;
  rooms.options = options;
  return std::make_unique<StoreState>(std::move(rooms));
}

Status StoreState::FinishMaking() {
  // The manifest comes last, because a folder with a manifest is a memory.
  EVERLONG_RETURN_IF_ERROR(WriteManifestNow());
  rooms_.unfinished = false;
  KeepReserve();
  return OkStatus();
}

StoreState::~StoreState() {
  if (queue_) static_cast<void>(OrOutOfMemory([this] { return Flush(nullptr); }));
  queue_.reset();
  if (!rooms_.unfinished) return;
  // Without a manifest nobody takes what is left for a memory, so a failure here does no harm. In a folder that was
  // there before nothing but an empty folder had these names (RequireFree).
  rooms_.catalog.reset();
  if (!rooms_.folder_existed) {
    RemoveAll(*rooms_.folder);
    return;
  }
  RemoveAll(*rooms_.folder / kSegmentFolder);
  RemoveAll(*rooms_.folder / kOwnFileFolder);
  static_cast<void>(CatalogFile::Remove(*rooms_.folder / kCatalogFile));
}

MemoryStore::MemoryStore(std::unique_ptr<StoreState> state) : state_(std::move(state)) {}
MemoryStore::~MemoryStore() = default;

Result<int64_t> MemoryStore::Forgettings() const { return state_->catalog().Forgettings(); }
Manifest MemoryStore::manifest() const { return state_->manifest(); }
std::optional<FilePath> MemoryStore::folder() const { return state_->folder(); }
bool MemoryStore::read_only() const { return state_->read_only(); }
Status MemoryStore::CheckWritable() const { return state_->CheckWritable(); }
Status MemoryStore::SetAttribute(const std::string& key, const std::string& value) {
  return state_->SetAttribute(key, value);
}
Status MemoryStore::PutFile(const std::string& name, std::span<const std::byte> bytes) {
  return state_->PutFile(name, bytes);
}
Result<std::vector<std::byte>> MemoryStore::File(const std::string& name) const {
  return state_->own_files().Get(name);
}
void MemoryStore::SetIndexBytes(int64_t bytes) { state_->SetIndexBytes(bytes); }
void MemoryStore::KeepReserve() { state_->KeepReserve(); }

Result<std::unique_ptr<MemoryStore>> MemoryStore::Create(const std::optional<std::filesystem::path>& folder,
                                                         const Manifest& manifest, const StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<StoreState> made, StoreState::MakeUnfinished(folder, manifest, options));
  EVERLONG_RETURN_IF_ERROR(made->FinishMaking());
  return std::unique_ptr<MemoryStore>(new MemoryStore(std::move(made)));
}

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(const std::filesystem::path& given, bool read_only,
                                                       const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  EVERLONG_ASSIGN_OR_RETURN(const std::filesystem::path path, AbsolutePath(given));
  Result<FilePath> opened = FilePath::Open(path);
  if (opened.status().code() == StatusCode::kNotFound) return ReadManifest(path).status();
  EVERLONG_ASSIGN_OR_RETURN(const FilePath folder, std::move(opened));
  const FileStamp seen = StampOf(folder / kManifestFile);
  Result<Manifest> read = ReadManifest(folder);
  if (read.status().code() == StatusCode::kNotFound && IsTaken(folder / kSegmentFolder)) {
    return CorruptError("memory '" + folder.string() + "' has segments but its " + kManifestFile + " is missing");
  }
  StoreState::Rooms rooms;
  rooms.folder = folder;
  rooms.read_only = read_only;
  rooms.options = WithHostBytes(options);
  const int64_t host = *rooms.options.host_bytes;
  EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, std::move(read));
  if (read_only) {
    EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Over(CatalogFile::Open(folder / kCatalogFile, true), host));
    EVERLONG_RETURN_IF_ERROR(RequireSchema(*rooms.catalog, rooms.manifest, folder));
    auto segments = std::make_unique<SegmentFiles>(folder / kSegmentFolder);
    rooms.files = segments.get();
    rooms.segments = std::move(segments);
    return std::unique_ptr<MemoryStore>(new MemoryStore(std::make_unique<StoreState>(std::move(rooms))));
  }
  EVERLONG_ASSIGN_OR_RETURN(rooms.lock, WriterLock::Acquire(folder));
  // The last writer may have replaced it before this one had the lock.
  if (StampOf(folder / kManifestFile) != seen) {
    EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, ReadManifest(folder));
  }
  EVERLONG_RETURN_IF_ERROR(RemoveFile(folder / kManifestTemporary));
  Result<std::unique_ptr<Catalog>> catalog = Catalog::Over(CatalogFile::Open(folder / kCatalogFile, false), host);
  if (catalog.status().code() == StatusCode::kIoError) {  // SQLite's own files need room, too
    ReleaseReserve(folder);
    catalog = Catalog::Over(CatalogFile::Open(folder / kCatalogFile, false), host);
  }
  EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, std::move(catalog));
  EVERLONG_RETURN_IF_ERROR(RequireSchema(*rooms.catalog, rooms.manifest, folder));
  EVERLONG_ASSIGN_OR_RETURN(const int32_t newest, rooms.catalog->NewestSegment());
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentFiles> segments,
                            SegmentFiles::OpenForWriting(folder / kSegmentFolder, newest, options.segment_bytes));
  rooms.files = segments.get();
  rooms.segments = std::move(segments);
  EVERLONG_ASSIGN_OR_RETURN(rooms.next_id, rooms.catalog->NextBlockId());
  auto state = std::make_unique<StoreState>(std::move(rooms));
  EVERLONG_RETURN_IF_ERROR(state->own_files().RemoveLeftovers());
  EVERLONG_RETURN_IF_ERROR(Writer(*state).Migrate());
  state->KeepReserve();
  return std::unique_ptr<MemoryStore>(new MemoryStore(std::move(state)));
}

}  // namespace everlong::store
