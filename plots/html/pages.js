(function () {
  var size = 25;
  function make(tag, name, text) {
    var e = document.createElement(tag);
    if (name) e.className = name;
    if (text !== undefined) e.textContent = text;
    return e;
  }
  function number(v) { return v === null ? 'unknown' : String(Number(v.toPrecision(4))); }
  function summary(e) {
    var parts = [e.n + '. reward ' + number(e.r)];
    if (e.v !== null) parts.push('advantage ' + (e.v >= 0 ? '+' : '') + e.v.toFixed(3));
    parts.push(e.q + ' ' + (e.a === null ? 'no answer' : '\u2192 ' + e.a), e.e, 'turns ' + e.u.length, 'searches ' + e.s, 'tokens ' + e.t);
    return parts.join(' \u00b7 ');
  }
  function fill(details, e) {
    e.u.forEach(function (turn) {
      var line = make('div', 'sb-line'), text = make('div', 'sb-text');
      line.appendChild(make('b', '', turn.h));
      (turn.x || []).forEach(function (x) {
        var run = make('span', 'sb-run sb-' + x.c, x.t), around;
        if (x.p === 'selected') around = make('mark');
        if (x.p === 'action') around = make('mark', 'sb-action');
        if (x.p === 'after') around = make('s');
        if (around) { around.appendChild(run); run = around; }
        text.appendChild(run);
      });
      details.appendChild(line);
      details.appendChild(text);
    });
  }
  document.querySelectorAll('.sb-trajectories:not([data-ready])').forEach(function (root) {
    root.setAttribute('data-ready', '');
    var all = JSON.parse(root.querySelector('.sb-data').textContent), shown = all, at = 0;
    var list = root.querySelector('.sb-list'), controls = root.querySelector('.sb-controls');
    function labelled(text, control) {
      var label = make('label', '', text);
      label.appendChild(control);
      controls.appendChild(label);
      return control;
    }
    var search = labelled('Find', make('input')), order = labelled('Order', make('select'));
    search.type = 'search';
    [['as played', 'n', 1], ['highest reward', 'r', -1], ['lowest reward', 'r', 1], ['most tokens', 't', -1], ['most searches', 's', -1]].forEach(function (o, i) {
      var option = make('option', '', o[0]);
      option.value = i;
      option.rule = o;
      order.appendChild(option);
    });
    var back = make('button', '', '\u2190 Back'), where = make('span', 'sb-note'), on = make('button', '', 'On \u2192');
    where.setAttribute('role', 'status');
    [back, where, on].forEach(function (e) { controls.appendChild(e); });
    back.type = on.type = 'button';
    function draw() {
      list.textContent = '';
      shown.slice(at, at + size).forEach(function (e) {
        var item = make('div', 'sb-item'), details = make('details');
        details.appendChild(make('summary', '', summary(e)));
        details.addEventListener('toggle', function () { if (details.open && !details.filled) { details.filled = true; fill(details, e); } });
        item.appendChild(details);
        list.appendChild(item);
      });
      where.textContent = (shown.length ? (at + 1) + '\u2013' + Math.min(at + size, shown.length) : '0') + ' of ' + shown.length;
      back.disabled = at === 0;
      on.disabled = at + size >= shown.length;
    }
    function choose() {
      var word = search.value.toLowerCase(), rule = order.options[order.selectedIndex].rule;
      shown = all.filter(function (e) { return !word || (summary(e) + ' ' + e.id).toLowerCase().indexOf(word) >= 0; });
      shown.sort(function (a, b) {
        var x = a[rule[1]], y = b[rule[1]];
        if (x === null || y === null) return (x === null) - (y === null) || a.n - b.n;
        return (x - y) * rule[2] || a.n - b.n;
      });
      at = 0;
      draw();
    }
    search.addEventListener('input', choose);
    order.addEventListener('change', choose);
    back.addEventListener('click', function () { at = Math.max(0, at - size); draw(); });
    on.addEventListener('click', function () { at += size; draw(); });
    draw();
  });
})();
