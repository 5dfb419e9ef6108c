(function () {
  document.querySelectorAll('.soarbook table.sb-sort:not([data-ready])').forEach(function (table) {
    table.setAttribute('data-ready', '');
    table.querySelectorAll('thead th').forEach(function (th, column) {
      var button = document.createElement('button');
      button.type = 'button';
      while (th.firstChild) button.appendChild(th.firstChild);
      th.appendChild(button);
      button.addEventListener('click', function () {
        var down = th.getAttribute('aria-sort') !== 'descending';
        table.querySelectorAll('thead th').forEach(function (other) { other.removeAttribute('aria-sort'); });
        th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        var body = table.tBodies[0], rows = Array.prototype.slice.call(body.rows);
        var key = function (row) {
          var cell = row.cells[column], v = cell.getAttribute('data-v');
          return v === null ? cell.textContent.trim() : v === '' ? null : Number(v);
        };
        rows.sort(function (a, b) {
          var x = key(a), y = key(b);
          if (x === null || y === null) return (x === null) - (y === null);
          var order = typeof x === 'number' ? x - y : x.localeCompare(y);
          return down ? -order : order;
        });
        rows.forEach(function (row) { body.appendChild(row); });
      });
    });
  });
})();
