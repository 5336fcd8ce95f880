// The file system as SQLite sees it for databases that came from anybody: a layer over SQLite's own.
#pragma once

namespace everlong {

// The layer's name, for sqlite3_open_v2; registered by the first call. Null where SQLite has no file system of its own.
//
// It takes paths as they are, so a path through /proc/self/fd stays one. It never opens a link. It hides rollback
// journals that lie beside a database: ours are kept with a write-ahead log, so such a journal is somebody else's, and
// SQLite would play it back and remove the file that it names. It opens no super-journal. Thread-safe.
const char* BeneathVfs();

}  // namespace everlong
