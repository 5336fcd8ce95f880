// How a store comes to be.
#include "everlong/store/memory_store.h"

#include <system_error>
#include <utility>

#include "file.h"
#include "host_memory.h"
#include "manifest_file.h"
#include "store.h"

namespace everlong::store {
namespace {

bool HoldsSegments(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entry(folder / kSegmentFolder, error);
  return !error && entry != std::filesystem::directory_iterator();
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

StoreOptions WithHostBytes(StoreOptions options) {
  if (!options.host_bytes) options.host_bytes = FreeMemoryBytes() / 2;
  return options;
}

// Folder, lock, empty catalog; no manifest yet.
Result<Store::Rooms> MakeFolderRooms(const std::filesystem::path& folder, const StoreOptions& options) {
  const auto exists = [&folder] {
    std::error_code error;
    return std::filesystem::exists(folder / kManifestFile, error) || HoldsSegments(folder);
  };
  const std::string refusal = "there is a memory in '" + folder.string() + "' already";
  if (exists()) return AlreadyExistsError(refusal);
  Store::Rooms rooms;
  std::error_code error;
  rooms.folder_existed = std::filesystem::exists(folder, error);
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder));
  EVERLONG_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Acquire(folder));
  if (exists()) return AlreadyExistsError(refusal);
  // Without manifest and segments a catalog is what a crash left of an earlier Create; no block was ever in it.
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
  // Last, for a folder with a manifest is a memory.
  EVERLONG_RETURN_IF_ERROR(WriteManifestNow());
  rooms_.unfinished = false;
  return OkStatus();
}

Store::~Store() {
  queue_.reset();  // commits what is queued
  if (!rooms_.unfinished) return;
  // Without a manifest nobody takes what is left for a memory, so a failure here does no harm.
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

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(const std::filesystem::path& folder, bool read_only,
                                                       const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  Result<Manifest> read = ReadManifest(folder);
  if (read.status().code() == StatusCode::kNotFound && HoldsSegments(folder)) {
    return CorruptError("memory '" + folder.string() + "' has segments but its " + kManifestFile + " is missing");
  }
  Store::Rooms rooms;
  rooms.folder = folder;
  rooms.read_only = read_only;
  rooms.options = WithHostBytes(options);
  EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, std::move(read));
  if (read_only) {
    EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Open(folder / kCatalogFile, true));
    auto segments = std::make_unique<SegmentFiles>(folder / kSegmentFolder);
    rooms.files = segments.get();
    rooms.segments = std::move(segments);
    return std::unique_ptr<MemoryStore>(new Store(std::move(rooms)));
  }
  EVERLONG_ASSIGN_OR_RETURN(rooms.lock, WriterLock::Acquire(folder));
  // Once more under the lock: the last writer may have replaced it since.
  EVERLONG_ASSIGN_OR_RETURN(rooms.manifest, ReadManifest(folder));
  EVERLONG_RETURN_IF_ERROR(RemoveFile(folder / kManifestTemporary));
  EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Open(folder / kCatalogFile, false));
  EVERLONG_ASSIGN_OR_RETURN(const int32_t newest, rooms.catalog->NewestSegment());
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentFiles> segments,
                            SegmentFiles::OpenForWriting(folder / kSegmentFolder, newest, options.segment_bytes));
  rooms.files = segments.get();
  rooms.segments = std::move(segments);
  EVERLONG_ASSIGN_OR_RETURN(rooms.next_id, rooms.catalog->NextBlockId());
  return std::unique_ptr<MemoryStore>(new Store(std::move(rooms)));
}

}  // namespace everlong::store
