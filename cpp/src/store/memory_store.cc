// How a store is made and opened.
#include "everlong/store/memory_store.h"

#include <system_error>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/store/free_ram.h"
#include "manifest_file.h"
#include "store.h"

namespace everlong::store {
namespace {

// Return whether there is anything of that name but an empty folder.
bool IsTaken(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  return !std::filesystem::is_directory(path, error) || !std::filesystem::is_empty(path, error) || error;
}

// Return kAlreadyExists when something in `folder` has a name of ours: a memory, or a file of somebody else. What a
// crash left of an earlier Create does not count. It looks at the catalog only with `may_open_catalog`, because that
// would disturb another process that is making a memory there.
Status RequireFree(const std::filesystem::path& folder, bool may_open_catalog) {
  std::error_code error;
  if (std::filesystem::exists(folder / kManifestFile, error) || IsTaken(folder / kSegmentFolder)) {
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
  const std::filesystem::path catalog = folder / kCatalogFile;
  if (!may_open_catalog || !std::filesystem::exists(catalog, error) || Catalog::HoldsNothing(catalog)) {
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
Status RequireSchema(Catalog& catalog, const Manifest& manifest, const std::filesystem::path& folder) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, catalog.Schema());
  if (schema >= manifest.format_version) return OkStatus();
  return CorruptError("catalog '" + (folder / kCatalogFile).string() + "' has format " + std::to_string(schema) +
                      ", its memory format " + std::to_string(manifest.format_version));
}

StoreOptions WithHostBytes(StoreOptions options) {
  if (!options.host_bytes) options.host_bytes = FreeRamBytes() / 2;
  return options;
}

// Make folder, lock and empty catalog; no manifest yet.
Result<Store::Rooms> MakeFolderRooms(const std::filesystem::path& given, const StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(const std::filesystem::path folder, AbsolutePath(given));
  // Check this before the lock's file is made there, so that a refusal changes nothing.
  std::error_code error;
  EVERLONG_RETURN_IF_ERROR(RequireFree(folder, !std::filesystem::exists(folder / kLockFile, error)));
  Store::Rooms rooms;
  rooms.folder_existed = std::filesystem::exists(folder, error);
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder));
  EVERLONG_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Acquire(folder));
  EVERLONG_RETURN_IF_ERROR(RequireFree(folder, true));  // another process may have been quicker
  for (const char* suffix : {"", "-wal", "-shm"}) {
    EVERLONG_RETURN_IF_ERROR(RemoveFile(folder / (std::string(kCatalogFile) + suffix)));
  }
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Create(folder / kCatalogFile));
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

Result<std::unique_ptr<Store>> Store::MakeUnfinished(const std::optional<std::filesystem::path>& folder,
                                                     const Manifest& manifest, const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateManifest(manifest));
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  if (manifest.format_version != kFormatVersion) {
    return InvalidArgumentError("manifest: format_version is " + std::to_string(manifest.format_version) +
                                ", expected " + std::to_string(kFormatVersion));
  }
  Rooms rooms;
  if (folder) {
    EVERLONG_ASSIGN_OR_RETURN(rooms, MakeFolderRooms(*folder, options));
  } else {
    EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::CreateInRam());
  }
  rooms.manifest = manifest;
  rooms.options = WithHostBytes(options);
  if (!folder) rooms.segments = MakeRamSegments(*rooms.options.host_bytes);
  return std::make_unique<Store>(std::move(rooms));
}

Status Store::FinishMaking() {
  // The manifest comes last, because a folder with a manifest is a memory.
  EVERLONG_RETURN_IF_ERROR(WriteManifestNow());
  rooms_.unfinished = false;
  return OkStatus();
}

Store::~Store() {
  queue_.reset();  // commits what is queued
  if (!rooms_.unfinished) return;
  // Without a manifest nobody takes the rest for a memory, so a failure here does no harm. If the folder was there
  // before, only empty folders had these names (RequireFree).
  std::error_code error;
  rooms_.catalog.reset();
  if (rooms_.folder_existed) {
    std::filesystem::remove_all(*rooms_.folder / kSegmentFolder, error);
    std::filesystem::remove_all(*rooms_.folder / kOwnFileFolder, error);
    std::filesystem::remove(*rooms_.folder / kCatalogFile, error);
  } else {
    std::filesystem::remove_all(*rooms_.folder, error);
  }
}

Result<std::unique_ptr<MemoryStore>> MemoryStore::Create(const std::optional<std::filesystem::path>& folder,
                                                         const Manifest& manifest, const StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::MakeUnfinished(folder, manifest, options));
  EVERLONG_RETURN_IF_ERROR(store->FinishMaking());
  return std::unique_ptr<MemoryStore>(std::move(store));
}

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(const std::filesystem::path& given, bool read_only,
                                                       const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  EVERLONG_ASSIGN_OR_RETURN(const std::filesystem::path folder, AbsolutePath(given));
  Result<Manifest> read = ReadManifest(folder);
  if (read.status().code() == StatusCode::kNotFound && IsTaken(folder / kSegmentFolder)) {
    return CorruptError("memory '" + folder.string() + "' has segments but its " + kManifestFile + " is missing");
  }
  Store::Rooms rooms;
  rooms.folder = folder;
  rooms.read_only = read_only;
  rooms.options = WithHostBytes(options);
  EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, std::move(read));
  if (read_only) {
    EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Open(folder / kCatalogFile, true));
    EVERLONG_RETURN_IF_ERROR(RequireSchema(*rooms.catalog, rooms.manifest, folder));
    auto segments = std::make_unique<SegmentFiles>(folder / kSegmentFolder);
    rooms.files = segments.get();
    rooms.segments = std::move(segments);
    return std::unique_ptr<MemoryStore>(new Store(std::move(rooms)));
  }
  EVERLONG_ASSIGN_OR_RETURN(rooms.lock, WriterLock::Acquire(folder));
  // Read it once more under the lock: the last writer may have replaced it since.
  EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, ReadManifest(folder));
  EVERLONG_RETURN_IF_ERROR(RemoveFile(folder / kManifestTemporary));
  EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Open(folder / kCatalogFile, false));
  EVERLONG_RETURN_IF_ERROR(RequireSchema(*rooms.catalog, rooms.manifest, folder));
  EVERLONG_ASSIGN_OR_RETURN(const int32_t newest, rooms.catalog->NewestSegment());
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentFiles> segments,
                            SegmentFiles::OpenForWriting(folder / kSegmentFolder, newest, options.segment_bytes));
  rooms.files = segments.get();
  rooms.segments = std::move(segments);
  EVERLONG_ASSIGN_OR_RETURN(rooms.next_id, rooms.catalog->NextBlockId());
  auto store = std::make_unique<Store>(std::move(rooms));
  EVERLONG_RETURN_IF_ERROR(store->RemoveLeftovers());
  EVERLONG_RETURN_IF_ERROR(store->Migrate());
  return std::unique_ptr<MemoryStore>(std::move(store));
}

}  // namespace everlong::store
